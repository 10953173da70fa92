// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import "io"

// ReadAside reads a catalog like [ReadCatalog], but in the background. The returned function waits
// for the result. It allows reading the cluster at the same time, since catalogs are large. Every
// call of wait returns the same result.
func ReadAside(paths []string, stdin io.Reader) (wait func() (*Catalog, error)) {
	var catalog *Catalog
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		catalog, err = ReadCatalog(paths, stdin)
	}()
	return func() (*Catalog, error) {
		<-ended
		return catalog, err
	}
}
