// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package config reads the scheduler's configuration: KubeSchedulerConfiguration files of
// kubescheduler.config.k8s.io/v1 as written for kube-scheduler v1.37, and legacy files (Policy v1,
// componentconfig v1alpha1), which are translated.
//
// A file is compiled into profiles of package plugins: the plugins called at each extension point,
// their order, weights and arguments. Merging with the defaults, the expansion of multiPoint and
// all validation match kube-scheduler. The error messages are also kube-scheduler's, prefixed with
// the name of the file and the path of the field. A file with an unknown field or plugin is refused
// as a whole. Valid fields without an effect in Berth are listed in [Config.Notes].
package config
