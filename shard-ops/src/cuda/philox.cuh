// Random words that do not depend on who draws them: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011), as in rng.rs.
struct Stream { u32 key[2]; u32 call[2]; };
struct Words { u32 at[4]; };
DEVICE Words words(const Stream& s, u64 index) {
    u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = s.call[0], c3 = s.call[1], k0 = s.key[0], k1 = s.key[1];
    for (i32 round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        const u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Words w = {{c0, c1, c2, c3}};
    return w;
}
