// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package outoftree runs plugins written for kube-scheduler, which are compiled into Berth without
// a change. It supports everything that implements the interfaces of
// k8s.io/kube-scheduler/framework v0.37, at every extension point.
//
// A plugin that judges or scores nodes becomes a filter or scorer of package plugins, called node
// by node; a plugin at another extension point becomes an extension of the live scheduler. Both see
// the cluster in kube-scheduler's form. A snapshot, taken when the pod is decided, has a NodeInfo
// for every node, including the API objects. A CycleState accompanies the pod from PreFilter to
// PostBind. The objects are kept only while such plugins exist ([Store]).
//
// The order of calls, the effect of each status and the messages match kube-scheduler's framework
// runtime. docs/tasks/plugins.md lists the supported and unsupported parts of a Handle.
package outoftree
