// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakeapi implements, in memory and for tests, as much of an API server as schedulers and
// controllers use: real clients reach it through an http.RoundTripper, without a network, so that
// it runs in virtual time (testing/synctest). It keeps resource versions, makes the refusals of a
// real server (binding a bound pod, another UID, an old version), and injects its failures on
// request: requests refused, lost before or after their execution, or late; watches that end, fall
// behind, or start from a forgotten version.
package fakeapi
