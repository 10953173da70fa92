// Package scheduler is the command `berth scheduler`: the scheduler that runs in
// place of kube-scheduler, or beside it, with its configuration files, flags,
// endpoints, metrics and leader election.
//
// Plugins that are written against k8s.io/kube-scheduler/framework are compiled
// in as with kube-scheduler: a main that calls [NewCommand] with one
// [WithPlugin] each. What schedules is in internal/scheduler/live, what makes such
// plugins fit is in internal/scheduler/outside; here is what surrounds them: what is
// read, from where, and when a change of it takes effect.
package scheduler
