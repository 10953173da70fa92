// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package options reads the scheduler's flags and its configuration file. Flags have
// kube-scheduler's names and meanings; flags without an effect in Berth are accepted with a note.
//
// A [Source] is the origin of the configuration (a file, a legacy Policy file or ConfigMap, or
// nothing). [Settings] holds the process's own settings from the source and the flags: the
// connection to the cluster, leader election, and observability. Flags override the file;
// kube-scheduler, in contrast, ignores most flags if there is a file.
package options
