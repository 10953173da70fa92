// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package records stores records in the files of a directory. The meaning of a record is up to its
// writers and readers. A file begins with a line naming its format and a header in JSON. Each
// record has its length and a checksum, so that a file ending in the middle of a record, for
// example after a kill, can be read up to that point. Files are bounded by size and age; the oldest
// are removed as a whole.
package records
