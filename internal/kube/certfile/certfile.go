// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package certfile rereads certificates from files regularly, so that renewed certificates are used
// without a restart.
package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// reread is the minimum interval between reads of a file. The files are not watched; they are read
// again for the first new connection after that time.
const reread = time.Minute

// Pair is a certificate with its key, as last read from the files. Its methods may be called from
// any goroutine.
type Pair struct {
	// Renew, if set, is called with the certificate before the files are read again, and may
	// rewrite the files.
	Renew func(*x509.Certificate) error

	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	at      time.Time // when it was read
}

// Read reads the files. It returns an error if the files are missing, or if the key does not match
// the certificate. Newest only logs such errors.
func Read(certFile, keyFile string) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile}
	return p, p.read()
}

// read reads both files again. If that fails, the previous certificate is kept. Leaf may be nil in
// the loaded pair, but Renew needs it for the expiration time.
func (p *Pair) read() error {
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	p.current, p.at = &pair, time.Now()
	return nil
}

// Newest returns the certificate, for [tls.Config.GetCertificate]. It reads the files again if the
// last read was a while ago. If they cannot be read, it returns the previous certificate.
func (p *Pair) Newest(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < reread {
		return p.current, nil
	}

	var err error
	if p.Renew != nil {
		err = p.Renew(p.current.Leaf)
	}

	if err == nil {
		err = p.read()
	}
	if err != nil {
		klog.Background().Error(err, "Certificate not read again, the last one is used", "file", p.certFile)
		p.at = time.Now()
	}
	return p.current, nil
}

// Bundle is a set of CA certificates. Its methods may be called from any goroutine.
type Bundle struct {
	file string

	mu      sync.Mutex
	current *x509.CertPool
	at      time.Time // when it was read
}

// ReadBundle reads the file.
func ReadBundle(file string) (*Bundle, error) {
	b := &Bundle{file: file}
	return b, b.read()
}

// read reads the file again. If that fails, the previous CAs are kept.
func (b *Bundle) read() (err error) {
	pool, err := cert.NewPool(b.file)
	if err == nil {
		b.current, b.at = pool, time.Now()
	}
	return err
}

// Newest returns the CAs. It reads the file again if the last read was a while ago. If the file
// cannot be read, it returns the previous CAs.
func (b *Bundle) Newest() *x509.CertPool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) < reread {
		return b.current
	}
	if err := b.read(); err != nil {
		klog.Background().Error(err, "CAs not read again, the last ones are used", "file", b.file)
		b.at = time.Now()
	}
	return b.current
}
