// Package cgroups manages the control groups of pods: it chooses a pod's group by QoS class, sizes
// it from requests, limits and overhead, reads its usage, and removes it with everything in it.
// Sizes and OOM scores are pure functions of the pod, with the kubelet's numbers.
//
// The tree is the kubelet's: kubepods with the groups of Guaranteed pods, and in it burstable and
// besteffort with those of the others. The runtime puts a pod's containers beneath the pod's group
// (cgroup_parent). Both versions of cgroups and the names of both drivers are supported. Groups are
// used as the kernel's folders and files, without a daemon. With the systemd driver's names, the
// runtime makes its own scopes through systemd, below slices made here.
package cgroups
