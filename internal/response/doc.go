// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package response defines how the cores receive responses of the API server.
//
// A core issues a Ticket with each request. Its driver, live or in virtual time, carries out the
// request and passes the core exactly one response with the same Ticket, however late, and with an
// Outcome.
package response
