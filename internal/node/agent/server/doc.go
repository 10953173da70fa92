// Package server is the node's own API: what kubectl, the API server and readers of metrics ask a
// node for, with the paths and formats of the kubelet's API v1.36. Logs are read from the files
// that the runtime writes; exec, attach and port-forward are passed to the runtime's streaming
// server; pods, statistics and metrics come from the agent.
//
// Callers need a client certificate of the cluster's CA or a bearer token that the API server
// accepts (TokenReview), and the API server must allow their request on this node's subresources
// (SubjectAccessReview). A path is parsed once, by parse, so that what is authorized and what is
// done cannot differ. Time, size and number of what a client may hold open are bounded.
package server
