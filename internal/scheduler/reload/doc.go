// Package reload follows a configuration file while a process runs: a change
// that is good takes effect, one that is not is refused, told of once, and what
// was last good stays in use.
//
// The file is compared by content, not by what the file system says of it: that
// is the same for a file that is written over, one that is replaced by another,
// and one in a ConfigMap's volume, which is behind two symbolic links. A change
// counts when it has stood still for a moment, so that a file that is being
// written is not taken for a finished one.
package reload
