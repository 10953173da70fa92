// Command berth is Berth's only binary: a whole cluster to try (up, nodes, kubectl), the components
// that run in a cluster, and the commands that answer questions. Each command has one file, with
// its flags and wiring; what it does is in the package that it calls. Linked or copied as
// kubectl-berth, it is a kubectl plugin and calls itself "kubectl berth".
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 what --fail-on names came true. An error is one
// line on standard error that says what to do.
package main
