// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares Berth with the Kubernetes scheduler itself. It evaluates random pods
// in random clusters by the plugins of k8s.io/kubernetes v1.37 and by Berth's plugins. Every
// verdict, reason, score, message, choice and victim must be the same.
//
// A cluster is generated from one number, its seed ([Generate]). The upstream side ([newUpstream])
// consists of the cache, framework and plugins of the Kubernetes scheduler with informers that are
// filled directly and never run. Berth's side reads the same objects into a cluster.Cluster.
// Disagreements are reported as [Difference]s, after the cluster has been minimized.
//
// Run it with
//
//	go test ./conformance -clusters=2000 -seed=1 -plugins=TaintToleration,NodeAffinity
//
// Gangs are compared by running both whole schedulers, with the feature gates on; the flag
// -gangs=1000 sets the number of clusters.
package conformance
