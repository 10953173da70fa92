// Package live is the live scheduler: it watches a cluster, decides where waiting pods go, and sees to it that they get
// there.
//
// One goroutine owns what is known of the cluster, the queue and the deciders. Watches and workers never touch these; they leave
// messages in its inbox. It takes all messages, decides one pod, and so on. Bindings, evictions of victims, status and events are
// carried out by workers; what comes of them returns as a message. A pod that is being bound is counted on its node meanwhile.
package live
