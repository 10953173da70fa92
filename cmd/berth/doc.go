// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth is Berth's only binary: a whole cluster to try (up, nodes, kubectl), the components
// of a cluster, and the inspection commands. Each command has one file, with its flags and wiring;
// the implementation is in the package that it calls. Linked or copied as kubectl-berth, it is a
// kubectl plugin and uses the name "kubectl berth".
//
// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a condition named by --fail-on holds. An error
// is one line on standard error with a remedy.
package main
