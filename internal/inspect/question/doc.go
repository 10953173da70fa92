// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package question opens the world of a server's question, and bounds the work of one request. The
// dashboard and the query service share it. The packages of the command line compute the results:
// explain, survey and whatif.
package question
