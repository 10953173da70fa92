// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Flags holds the flags of a command that writes a journal. The zero value has no flags, and
// Validate accepts it.
type Flags struct {
	Dir    string // empty: no journal
	Limits Limits // set by Validate

	set  *pflag.FlagSet
	size string
}

// leastSize is the smallest useful size of a journal.
const leastSize = 1 << 20

// AddFlags adds the flags. usage is the text of --journal.
func (f *Flags) AddFlags(set *pflag.FlagSet, usage string) {
	f.set = set
	set.StringVar(&f.Dir, "journal", "", usage+
		"; 64 MiB may wait for a slow disk, and what does not fit is lost and recorded in the log and the next file")
	set.StringVar(&f.size, "journal-size", "1Gi", "maximum size of the journals of --journal; the oldest file is removed first")
	set.DurationVar(&f.Limits.Age, "journal-age", 7*24*time.Hour, "maximum age of the journals of --journal; 0: no limit")
}

// Validate parses the size, and returns the first error, which names its flag.
func (f *Flags) Validate() error {
	if f.set == nil {
		return nil
	}
	for _, name := range []string{"journal-size", "journal-age"} {
		if f.Dir == "" && f.set.Changed(name) {
			return fmt.Errorf("--%s: requires --journal", name)
		}
	}
	if age := f.Limits.Age; age < 0 || age > 0 && age < time.Minute {
		return fmt.Errorf("--journal-age %s: must be 0 or at least 1m", age)
	}
	size, err := resource.ParseQuantity(f.size)
	if f.Limits.Size = size.Value(); err != nil || f.Limits.Size < leastSize {
		return fmt.Errorf("--journal-size %s: must be an amount of bytes of at least 1Mi, such as 512Mi", f.size)
	}
	return nil
}
