// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy reads DeschedulerPolicy files (descheduler/v1alpha2) into policies for package
// rebalance.
//
// Anything the descheduler refuses is refused, with file and line. Keys that the descheduler
// silently ignores (unknown keys outside of args, presort, sort, disabled) and keys without an
// equivalent in Berth are listed in the policy's notes.
//
// A plugin becomes one goal, or two goals if its arguments cover both hard constraints and
// preferences. read.go reads the file. plugins.go reads the arguments of plugins, and evictor.go
// reads those of DefaultEvictor, which restrict the movable pods. status.go evaluates pod statuses
// for plugins.
package policy
