// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet starts upstream's kubelet: it finds the program, writes its KubeletConfiguration
// and its command line, and reports already running kubelets. It does not implement any node
// functions itself.
package kubelet
