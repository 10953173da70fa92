// Package faultapi is an API server in memory and in virtual time, which fails
// in all the ways a real one does: requests that are lost before or after they
// were carried out, answers that come late, watches that are behind, cut,
// replayed and listed again, outages, and a controller that is killed and
// started anew. Everything that happens comes from one seed.
//
// World runs an eviction.Core against it and knows the truth, so it can say
// what went wrong: a pod deleted without a reason, or before its time, a pod
// that should have gone and did not, or went too late.
package faultapi
