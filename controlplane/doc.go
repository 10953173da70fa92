// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a Kubernetes control plane in the calling process: etcd, the API server
// and the workload controllers, upstream's own code of the version KubernetesVersion. It determines
// their assembly, the location of their state and the state's lifetime beyond the process; their
// behaviour is Kubernetes'.
//
// Run is for programs (cmd/berth-controlplane, and through it "berth up"). Start is for tests: a
// real API server with Deployments that create pods and namespaces that disappear on deletion, with
// nothing to install:
//
//	func TestScaling(t *testing.T) {
//		cluster := controlplane.Start(t)
//		client := kubernetes.NewForConfigOrDie(cluster.Config)
//		...
//	}
//
// It does not include nodes, nor a scheduler, node health and taint-based eviction, which are
// Berth's. Several control planes can run in a process, sequentially or concurrently, provided they
// agree on Kubernetes' feature gates, which exist once per process. While any runs, klog writes to
// its log file.
package controlplane
