// Command berth is Berth's one binary: a whole cluster to try (up, nodes,
// kubectl), the parts that run in a cluster, and the questions one can ask.
//
// One file a command: flags and wiring, nothing else; what a command does is in
// the package it calls. Linked or copied as kubectl-berth it is a kubectl
// plugin and calls itself "kubectl berth".
//
// Exit codes: 0 done, 1 it could not be done, 2 wrong usage. An error is one
// line on standard error that says what to do.
package main
