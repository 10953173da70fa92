// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// TestOnePodDoesNotTakeTheDoor verifies that the connections of one source are limited, on both
// sides of the relay, and that another source can still connect.
func TestOnePodDoesNotTakeTheDoor(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	behind, entrance := listen(), listen()
	go func() {
		for {
			conn, err := behind.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	go Serve(entrance, func() (string, error) { return behind.Addr().String(), nil })
	from := func(source string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		conn, err := d.Dial("tcp", entrance.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		return conn
	}
	// echoed reports whether data is relayed and returned.
	echoed := func(conn net.Conn) bool {
		_, _ = io.WriteString(conn, "x")
		_, err := io.ReadFull(conn, make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("neither passed on nor closed")
		}
		return err == nil
	}
	const more = 5
	var all []net.Conn
	for range guard.Ports.PerSource + more {
		all = append(all, from("127.0.0.1"))
	}
	if !echoed(from("127.0.0.2")) {
		t.Error("another source does not come through")
	}
	held := 0
	for _, conn := range all {
		if echoed(conn) {
			held++
		}
	}
	if held != guard.Ports.PerSource {
		t.Errorf("of %d connections of one source %d are held, want %d", len(all), held, guard.Ports.PerSource)
	}
}
