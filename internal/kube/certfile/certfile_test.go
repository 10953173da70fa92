// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package certfile

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

type files struct{ cert, key string }

func (f files) write(t *testing.T, name string) {
	t.Helper()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{f.cert: certPEM, f.key: keyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// shows checks the certificate returned by Newest when a reread is due.
func shows(t *testing.T, p *Pair, want string) {
	t.Helper()
	p.at = time.Now().Add(-2 * reread)
	shown, err := p.Newest(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := shown.Leaf.VerifyHostname(want); err != nil {
		t.Error(err)
	}
}

func TestFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	if _, err := Read(f.cert, f.key); err == nil {
		t.Error("files that are not there are no error")
	}
	f.write(t, "one")
	p, err := Read(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, "two")
	if shown, err := p.Newest(nil); err != nil || shown.Leaf.VerifyHostname("one") != nil {
		t.Errorf("read again at once: %v", err)
	}
	shows(t, p, "two")
	if err := os.Remove(f.key); err != nil {
		t.Fatal(err)
	}
	shows(t, p, "two")
}

// TestRenewWritesTheFilesBeforeTheyAreRead verifies that files written by Renew are used, and that
// the previous certificate is used if Renew fails.
func TestRenewWritesTheFilesBeforeTheyAreRead(t *testing.T) {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	f.write(t, "one")
	p, err := Read(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	p.Renew = func(*x509.Certificate) error { f.write(t, "two"); return nil }
	shows(t, p, "two")
	p.Renew = func(*x509.Certificate) error { f.write(t, "three"); return errors.New("not made") }
	shows(t, p, "two")
}

// TestCAsAreReadAgain verifies that the CAs are read again after a while, and that the previous CAs
// are used if the file cannot be read.
func TestCAsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")}
	if _, err := ReadBundle(f.cert); err == nil {
		t.Error("a file that is not there is no error")
	}
	f.write(t, "one")
	b, err := ReadBundle(f.cert)
	if err != nil {
		t.Fatal(err)
	}
	first := b.Newest()
	f.write(t, "two")
	if !b.Newest().Equal(first) {
		t.Error("read again immediately")
	}
	b.at = time.Now().Add(-2 * reread)
	second := b.Newest()
	if second.Equal(first) {
		t.Error("not read again")
	}
	if err := os.WriteFile(f.cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.at = time.Now().Add(-2 * reread)
	if !b.Newest().Equal(second) {
		t.Error("the last CAs are forgotten")
	}
}

// TestAFailureIsNotRepeatedForEachConnection verifies that a failed read is repeated only after the
// usual interval.
func TestAFailureIsNotRepeatedForEachConnection(t *testing.T) {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	f.write(t, "one")
	p, err := Read(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReadBundle(f.cert)
	if err != nil {
		t.Fatal(err)
	}
	first := b.Newest()
	tries := 0
	p.Renew = func(*x509.Certificate) error { tries++; return errors.New("not made") }
	if err := os.Remove(f.cert); err != nil {
		t.Fatal(err)
	}
	p.at, b.at = time.Now().Add(-2*reread), time.Now().Add(-2*reread)
	for i := range 3 {
		shown, err := p.Newest(nil)
		if err != nil || shown.Leaf.VerifyHostname("one") != nil {
			t.Errorf("the last one is not used: %v", err)
		}
		b.Newest()
		if i == 0 {
			f.write(t, "two")
		}
	}
	if tries != 1 || !b.Newest().Equal(first) {
		t.Errorf("tried %d times within a moment", tries)
	}
	p.Renew = nil
	shows(t, p, "two")
	b.at = time.Now().Add(-2 * reread)
	if b.Newest().Equal(first) {
		t.Error("not tried again")
	}
}
