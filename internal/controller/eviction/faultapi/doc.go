// Package faultapi is an API server in memory and in virtual time, which fails in all the ways a
// real one does: requests that are lost before or after they were carried out, late answers,
// watches that lag, break, replay and list again, outages, and a controller that is killed and
// restarted. Everything random comes from one seed.
//
// World runs an eviction.Core against it and knows the truth, so it can tell what went wrong: a pod
// deleted without a reason, or too early, or too late, or not at all.
package faultapi
