// Package topology describes where a machine's CPUs are, and decides from which NUMA nodes a
// container gets what is assigned to it: the providers of CPUs, memory and devices each give hints,
// the policy merges them into one, and the providers assign accordingly. Policies, scopes, order
// and messages are those of the kubelet's topology manager.
//
// It is pure: the kernel's view of the machine is read through an fs.FS.
package topology
