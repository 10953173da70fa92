// Package rules says what the fields of the Kubernetes API mean to a
// scheduler: which toleration tolerates which taint, how much a pod asks for,
// which pods are terminal, which priority and quality of service a pod has,
// and what the API server would refuse, in the API server's own words.
//
// Everything is a pure function of API objects: no client, no clock, no state.
// Scheduler, eviction, node health, admission, simulation and explanation all
// ask here, so that one field never means two things. Where k8s.io publishes
// the rule as a library the function here only names it and fixes its options
// to those of kube-scheduler v1.37 with its default feature gates.
package rules
