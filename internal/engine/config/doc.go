// Package config reads how the scheduler is configured: KubeSchedulerConfiguration files of
// kubescheduler.config.k8s.io/v1 as they are written for kube-scheduler v1.36, and the legacy files
// before them (Policy v1, componentconfig v1alpha1), which are translated.
//
// A file becomes profiles of package plugins: which plugins are asked at which extension point, in
// which order, with which weights and arguments. Merging with the defaults, the expansion of
// multiPoint and all checks are those of kube-scheduler, and so are the words of an error, with the
// name of the file and the path of the field in front. Nothing is half read: a file with an unknown
// field or plugin is refused. What is read but has no effect in Berth is told in [Config.Notes].
package config
