// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package reload follows a configuration file while a process runs. A valid change takes effect; an
// invalid one is refused and reported once, and the last valid configuration stays in use.
//
// Files are compared by content, not by metadata: that works the same for a file that is
// overwritten, for a replaced file, and for a file in a ConfigMap's volume, which is behind two
// symbolic links. A change counts once it has been stable for a moment, so that a half-written file
// is not taken for a finished one.
package reload
