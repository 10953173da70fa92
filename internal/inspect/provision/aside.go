package provision

import "io"

// ReadAside reads a catalog as [ReadCatalog] does, while the caller does something else. What it
// returns waits for the end. It is for the time in which the cluster is read: catalogs are large.
// The result of wait is the same each time it is called.
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
