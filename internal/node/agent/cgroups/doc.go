// Package cgroups gives pods their control groups: which group (by class of service), how large
// (from requests, limits and overhead), what is used in it, and that nothing is left of it
// afterwards. Sizes and OOM scores are pure functions of the pod, with the kubelet's numbers.
//
// The tree is the kubelet's: kubepods with the groups of guaranteed pods, and in it burstable and
// besteffort with those of the others; the runtime puts the containers of a pod beneath its group
// (cgroup_parent). Both versions of cgroups and both drivers' names are known. The groups are
// folders and files of the kernel and are used as such; no daemon is asked. With the systemd
// driver's names the runtime makes its own scopes through systemd, below slices made here.
package cgroups
