// Package fakeapi is as much of an API server as schedulers and controllers use, in memory and for
// tests: real clients reach it through an http.RoundTripper, without a network, so that it runs in
// virtual time (testing/synctest). It keeps resource versions, refuses what a real one refuses (a
// binding of a pod that has its node, another UID, an old version), and fails on request as a real
// one does: requests that are refused, lost before or after they were carried out, or late; watches
// that end, fall behind, or start from a forgotten version.
package fakeapi
