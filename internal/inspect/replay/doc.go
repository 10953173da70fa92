// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package replay plays journals for berth replay. It plays journals of the scheduler and of the
// controllers as recorded, and journals of the scheduler also under another configuration.
package replay
