define internal void @kernel.0(ptr noalias %b.x, ptr noalias %b.y, ptr noalias %b.out, i64 %e.n) #0 noinline {
entry:
  br label %start
start:
  br label %loop1.before
loop1.before:
  %loop1.any = icmp slt i64 0, %e.n
  br i1 %loop1.any, label %loop1, label %loop1.end
loop1:
  %c.i.1 = phi i64 [ 0, %loop1.before ], [ %loop1.next, %loop1.latch ]
  %v2 = getelementptr inbounds float, ptr %b.out, i64 %c.i.1
  %v3 = getelementptr inbounds float, ptr %b.x, i64 %c.i.1
  %v4 = load float, ptr %v3, align 4
  %v5 = fmul float %v4, 0x4000000000000000
  %v6 = getelementptr inbounds i16, ptr %b.y, i64 %c.i.1
  %v7 = load i16, ptr %v6, align 2
  %v8 = zext i16 %v7 to i32
  %v9 = shl i32 %v8, 16
  %v10 = bitcast i32 %v9 to float
  %v11 = fadd float %v5, %v10
  store float %v11, ptr %v2, align 4
  br label %loop1.latch
loop1.latch:
  %loop1.next = add nsw i64 %c.i.1, 1
  %loop1.more = icmp slt i64 %loop1.next, %e.n
  br i1 %loop1.more, label %loop1, label %loop1.end
loop1.end:
  ret void
}
define void @kernel(ptr %args, i64 %threads) #0 {
  %n = trunc i64 %threads to i32
  %at.0 = getelementptr i64, ptr %args, i64 0
  %b.x = load ptr, ptr %at.0
  %at.1 = getelementptr i64, ptr %args, i64 1
  %b.y = load ptr, ptr %at.1
  %at.2 = getelementptr i64, ptr %args, i64 2
  %b.out = load ptr, ptr %at.2
  %at.3 = getelementptr i64, ptr %args, i64 3
  %e.n = load i64, ptr %at.3
  call void @kernel.0(ptr %b.x, ptr %b.y, ptr %b.out, i64 %e.n)
  ret void
}
attributes #0 = { nounwind  }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.full"}

