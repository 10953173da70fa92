// Package shadow compares what another scheduler chose with what Berth would have chosen.
//
// Beside a scheduler at work, Berth follows the cluster and keeps a queue of the pods that wait,
// but decides, writes and says nothing. When such a pod is seen bound, every node is judged as it
// stood just before, and the node that the other scheduler took is compared with the best. Berth
// always takes one of the best, so the gain is what the cluster would win by it, in points of the
// profile's scores.
//
// Bindings are judged in the order in which the watch shows them; a scheduler that decides several
// pods at once has seen a slightly older cluster. A node that could not take the pod by then is
// counted apart, with the reason.
package shadow
