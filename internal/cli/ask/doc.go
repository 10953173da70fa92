// Package ask is what the commands that ask about a cluster have in common: where its state comes
// from (a live cluster, manifests, a recording), by which configuration of the scheduler they
// answer, how often, and how the names in it are completed.
package ask
