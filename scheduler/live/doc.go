// Package live is the live scheduler: it watches a cluster, decides where waiting pods go, and sees to it that they get
// there.
//
// One goroutine owns what is known of the cluster, the queue and the deciders. Watches and workers never touch these; they leave
// messages in its inbox. It takes all messages, wakes the pods that what happened can help, decides one pod, and so on.
//
// A pod that has been decided is counted on its node at once (a placement). Most are then bound by one of a bounded number of
// workers. One with something to be done or awaited before, volumes, devices, plugins from outside, goes through it on a goroutine of
// its own. What comes of it returns as a message: a pod that was not bound is taken off its node, gives back what was reserved for
// it, and goes back to the queue. Where it is not known whether a binding was carried out, the API server is asked until it is.
//
// Victims are deleted, status and events are written by workers behind all that.
package live
