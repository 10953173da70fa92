// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pacing defines how often the pure cores and their drivers may repeat a request.
//
// A core never repeats a request about an object without increasing back-off, whatever the
// responses are. A response can be lost, and a request can succeed without effect: a policy drops
// the changed field, another controller reverts it, a watch lags. So a core paces requests when it
// sends them, not when one fails.
package pacing
