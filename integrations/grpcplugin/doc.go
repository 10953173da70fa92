// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcplugin has the messages and the service of the cluster autoscaler's gRPC expander,
// generated from expander.proto by "make api".
package grpcplugin
