// Package groups tracks pod groups (scheduling.k8s.io PodGroup): which pods belong to which group,
// what each group asks for, and how many of its pods must be placed together.
//
// A [Set] knows every group that a PodGroup or a pod names, in whatever order they appear. A group
// has its object, which may be missing, and its members: the pods that name it and have not ended.
// Members that another scheduler places count only once they have a node, and members that are
// being deleted do not count at all. Which members have a node is not kept here: the owner of the
// set knows the cluster.
//
// The package is plain data with one owner. It decides nothing: package cycle schedules the groups.
package groups
