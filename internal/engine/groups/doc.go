// Package groups keeps the books of pod groups (scheduling.k8s.io PodGroup): which pods name which
// group, what the group asks for, and how many of its pods it wants placed together.
//
// A [Set] knows every group that a PodGroup or a pod names, in whatever order they appear. A group
// has its object, which may be missing, and its members: the pods that name it and have not ended.
// Members that another scheduler is to place count only once they have a node. Which members have a
// node is not kept here: the owner of the set knows the cluster.
//
// The package is plain data with one owner. It decides nothing: package cycle schedules groups.
package groups
