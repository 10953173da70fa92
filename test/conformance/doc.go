// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares Berth with the Kubernetes scheduler itself: it runs random clusters
// and pods through the plugins of k8s.io/kubernetes v1.37 and through Berth's, and every verdict,
// reason, score, message, choice and victim must be the same.
//
// A cluster is generated from one number, its seed ([Generate]). The upstream side ([newUpstream])
// is the scheduler's own cache, framework and plugins over manually filled informers, without
// goroutines; the Berth side reads the same objects into a cluster.Cluster. Disagreements are
// reported as [Difference]s, after minimizing the cluster.
//
// Run it with
//
//	go test ./conformance -clusters=2000 -seed=1 -plugins=TaintToleration,NodeAffinity
//
// Gangs are decided by the whole scheduler on either side, with the feature gates on: -gangs=1000.
package conformance
