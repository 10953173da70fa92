// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package client connects to Berth's query service, which reports whether pods fit into a cluster,
// and why pods are pending. The requests and answers are in package berthv1alpha1.
//
//	c, err := client.New("https://127.0.0.1:8423", client.Options{TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token"})
//	answer, err := c.Fits(ctx, &berthv1alpha1.FitsRequest{Namespace: "shop", Like: "deployment/web", Max: true})
package client
