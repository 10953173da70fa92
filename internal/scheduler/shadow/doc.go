// Package shadow compares the choices of another scheduler with Berth's.
//
// Beside a scheduler at work, Berth follows the cluster and keeps a queue of the pending pods, but
// decides and writes nothing. When such a pod is bound, every node is evaluated as it was just
// before, and the chosen node is compared with the best. Berth always takes one of the best, so the
// gain is what the cluster would win, in points of the profile's scores.
//
// Bindings are compared in the order in which the watch shows them; a scheduler that decides
// several pods at once saw a slightly older cluster. Nodes that could not take the pod by then are
// counted separately, with the reason.
package shadow
