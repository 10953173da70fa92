// Package server is the node's own API: what kubectl, the API server and
// metrics readers ask a node for, on the paths and in the shapes of kubelet's
// API v1.36. Logs are read from the files that the runtime writes; exec, attach
// and port-forward are handed to the runtime's streaming server; pods, statistics
// and metrics come from the agent.
//
// Nobody gets in without a client certificate of the cluster's authority or a
// bearer token that the API server vouches for (TokenReview), and nobody does
// anything that the API server does not allow on this node's subresources
// (SubjectAccessReview). A path is read once, by parse: what is asked about and
// what is done cannot differ. Time, size and number of what a client may hold
// open are bounded.
package server
