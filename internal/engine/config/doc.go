// Package config reads the scheduler's configuration: KubeSchedulerConfiguration files of
// kubescheduler.config.k8s.io/v1 as written for kube-scheduler v1.37, and the legacy files before
// them (Policy v1, componentconfig v1alpha1), which are translated.
//
// A file becomes profiles of package plugins: which plugins are called at which extension point, in
// which order, with which weights and arguments. Merging with the defaults, the expansion of
// multiPoint and all validation match kube-scheduler's, and so do the error messages, with the name
// of the file and the path of the field in front. A file with an unknown field or plugin is refused
// as a whole. What is valid but has no effect in Berth is listed in [Config.Notes].
package config
