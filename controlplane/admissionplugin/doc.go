// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package admissionplugin compiles Berth's admission rules into the API server as plugins that
// replace their upstream counterparts. Creating a pod thus requires no webhook call, and no pod can
// bypass the rules.
//
// There is one plugin per kind of object, each at the position of the first upstream plugin it
// replaces. The plugins run after NamespaceLifecycle, LimitRanger and PodNodeSelector, because the
// rules read the results of these plugins. They run before the webhooks, which may inspect the
// result, and before ResourceQuota, which counts the overhead.
//
// The plugins contain no rules: they convert between the API server's internal objects and those of
// package admission.
package admissionplugin
