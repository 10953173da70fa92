// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package groups tracks pod groups (scheduling.k8s.io PodGroup): the members of each group, its
// requirements, and how many of its pods must be placed together.
//
// A [Set] contains every group named by a PodGroup or a pod, in any order of appearance. A group
// has an object, which may be missing, and members: the pods that name the group and have not
// ended. Members of another scheduler count only once they have a node, and members being deleted
// do not count at all. The set does not track which members have a node; its owner does.
//
// The package contains plain data with one owner, and makes no decisions: package cycle schedules
// the groups.
package groups
