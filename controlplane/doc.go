// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a Kubernetes control plane in the calling process: etcd, the API server
// and the workload controllers, upstream's own code of the version KubernetesVersion. The package
// assembles these components and manages their state, which outlives the process; their behaviour
// is Kubernetes' own.
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
// The control plane does not include nodes. The scheduler, node health and taint-based eviction are
// also not included; other parts of Berth provide them. Several control planes can run in a
// process, sequentially or concurrently, provided they agree on Kubernetes' feature gates, which
// are process-wide. While a control plane runs, klog writes to its log file.
package controlplane
