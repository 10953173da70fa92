// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package requestcontroller runs the core of EvictionRequests against an API server.
package requestcontroller
