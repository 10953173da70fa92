// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakeapi implements, in memory and for tests, the parts of an API server that schedulers
// and controllers use. Real clients reach it through an http.RoundTripper, without a network, so it
// can run in virtual time (testing/synctest). It maintains resource versions, and rejects requests
// like a real API server, for example the binding of a bound pod, or a write with a different UID
// or an old version. Tests can inject failures: requests that are refused, delayed, or lost before
// or after their execution, and watches that end, lag, or start from a version that was dropped.
package fakeapi
